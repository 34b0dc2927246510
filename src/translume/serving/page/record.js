// Recordings from the microphone as WAV files, mono with 16 bits.
const RATE = 16_000, HEAD = 44;

export const canRecord = () => Boolean(navigator.mediaDevices?.getUserMedia && window.AudioWorkletNode);

// The head of a WAV file (RIFF) and its samples, from −1 to 1.
function wav(samples, rate) {
  const data = new DataView(new ArrayBuffer(HEAD + 2 * samples.length));
  const text = (at, word) => [...word].forEach((letter, place) => data.setUint8(at + place, letter.charCodeAt(0)));
  text(0, "RIFF");
  data.setUint32(4, HEAD - 8 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  data.setUint32(16, 16, true);
  data.setUint16(20, 1, true);
  data.setUint16(22, 1, true);
  data.setUint32(24, rate, true);
  data.setUint32(28, 2 * rate, true);
  data.setUint16(32, 2, true);
  data.setUint16(34, 16, true);
  text(36, "data");
  data.setUint32(40, 2 * samples.length, true);
  samples.forEach((each, place) => data.setInt16(HEAD + 2 * place, Math.round(32767 * Math.max(-1, Math.min(1, each))), true));
  return new File([data], "recording.wav", { type: "audio/wav" });
}

// The microphone in an audio context at 16 kHz or, in browsers that do not resample it, at its own rate.
function opened(stream) {
  const context = new AudioContext({ sampleRate: RATE });
  try {
    return [context, context.createMediaStreamSource(stream)];
  } catch {
    context.close();
    const own = new AudioContext();
    return [own, own.createMediaStreamSource(stream)];
  }
}

// Begin a recording. Return { stop(), done }: `done` is a promise of the file, or of null if nothing was recorded.
// seconds, bytes: limits at which it stops by itself.  ontime(passed, most): called about four times a second.
export async function record({ seconds, bytes, ontime }) {
  const raw = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const stream = await navigator.mediaDevices.getUserMedia({ audio: raw });
  const [context, microphone] = opened(stream);
  let end, count = 0, told = 0;
  const done = new Promise((resolve) => { end = resolve; });
  const blocks = [], rate = context.sampleRate, most = Math.floor(Math.min(seconds * rate, (bytes - HEAD) / 2));
  const stop = () => {
    for (const track of stream.getTracks()) track.stop();
    if (context.state === "closed") return;
    context.close();
    const whole = new Float32Array(count);
    blocks.reduce((at, block) => (whole.set(block, at), at + block.length), 0);
    end(count ? wav(whole.subarray(0, most), rate) : null);
  };
  try {
    await context.audioWorklet.addModule("page/recorder.js");
    const node = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
    node.port.onmessage = ({ data }) => {
      if (context.state === "closed") return;
      blocks.push(data);
      count += data.length;
      if (count >= most) stop();
      else if (count - told > rate / 4) ontime((told = count) / rate, most / rate);
    };
    microphone.connect(node);
    await context.resume();
  } catch (error) {
    stop();
    throw error;
  }
  return { stop, done };
}
