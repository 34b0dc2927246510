// Translates lines off the page's thread.
import { Tokenizer } from './tokenizers.js';
import { Translator } from './translume.js';

const loaded = Translator.load(Tokenizer, async (name) => {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return answer;
});
loaded.then(({ about }) => postMessage({ about }), (error) => postMessage({ fault: error.message }));

addEventListener('message', async ({ data: { number, line, options } }) => {
  try {
    postMessage({ number, found: (await loaded).translate(line, options) });
  } catch (error) {
    postMessage({ number, found: { text: '', pieces: [], fault: error.message } });
  }
});
