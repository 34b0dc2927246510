// The page: translates what is typed line by line, and shows the distribution in the place of a token.
const LISTED = 10;
const begun = performance.now(), $ = (id) => document.getElementById(id);
const text = $('text'), output = $('output'), state = { about: null, lines: [], shown: null, forced: new Map() };

const worker = new Worker('worker.js', { type: 'module' });
const waiting = new Map();
let asked = 0;

worker.addEventListener('error', () => fail('The translator could not be started.'));
worker.addEventListener('message', ({ data }) => {
  if (data.fault) fail(data.fault);
  else if (data.about) start(data.about);
  else waiting.get(data.number)(data.found), waiting.delete(data.number);
});

function ask(line, options) {
  return new Promise((resolve) => {
    waiting.set(++asked, resolve);
    worker.postMessage({ number: asked, line, options });
  });
}

function fail(reason) {
  $('status').textContent = reason;
  $('status').classList.add('fault');
  text.disabled = true;
}

function start(about) {
  state.about = about;
  const names = about.directions.map(({ source, target }) => [source, target].filter(Boolean).map(languageName).join(' → '));
  document.title = $('name').textContent = (names.length === 1 && names[0]) || 'Translation';
  names.forEach((name, place) => $('direction').add(new Option(name, place)));
  $('languages').hidden = about.directions.length < 2;
  for (const beam of new Set([1, 2, 4, 8, about.beam].sort((one, other) => one - other))) {
    $('beam').add(new Option(beam > 1 ? `beam of ${beam}` : 'greedy', beam, false, beam === about.beam));
  }
  const megabytes = (about.bytes / 1e6).toFixed(1), seconds = ((performance.now() - begun) / 1000).toFixed(1);
  $('status').textContent = `Ready after ${seconds} s. Everything is computed here: no text leaves this device. ${megabytes} MB are kept for use offline.`;
  update();
  keepOffline();
}

function languageName(code) {
  try {
    return new Intl.DisplayNames('en', { type: 'language' }).of(code);
  } catch {
    return code; // such as eng_Latn
  }
}

async function keepOffline() {
  try {
    const { digest } = await (await fetch('model.json?newest', { cache: 'no-store' })).json();
    await navigator.serviceWorker.register(`sw.js?${digest}`);
  } catch {
    // Offline, or a browser that keeps no pages.
  }
}

// The results of lines, by what determines them; the last ones are kept.
const known = new Map();
const keyOf = (line, options) => JSON.stringify([line, options]);

async function translated(line, options) {
  const key = keyOf(line, options);
  const found = known.get(key) ?? await ask(line, options);
  known.delete(key);
  known.set(key, found);
  if (known.size > 1000) known.delete(known.keys().next().value);
  return found;
}

let running = false, again = false;
async function update() {
  if (!state.about) return;
  if (running) {
    again = true;
    return;
  }
  running = true;
  do {
    again = false;
    const direction = Number($('direction').value), options = { direction, beam: Number($('beam').value), listed: LISTED };
    const lines = text.value.split('\n'), { target } = state.about.directions[direction];
    output.lang = target;
    for (let place = 0; place < lines.length && !again; place++) {
      const begin = state.forced.get(lines[place]);
      const found = await translated(lines[place], begin ? { ...options, begin } : options);
      if (!again) showLine(place, lines[place], found);
    }
    if (!again) {
      while (output.children.length > lines.length) output.lastChild.remove();
      state.lines.length = lines.length;
    }
  } while (again);
  running = false;
  output.dataset.done = text.value;
}

function percent(logProb) {
  const share = 100 * Math.exp(logProb);
  return `${share >= 0.1 || !share ? share.toFixed(1) : share.toPrecision(1)} %`;
}

function showLine(place, line, found) {
  const paragraph = output.children[place] ?? output.appendChild(document.createElement('p'));
  if (state.lines[place] === found) return;
  state.lines[place] = found;
  if (state.shown?.place === place) hideStep();
  paragraph.dir = 'auto';
  paragraph.replaceChildren();
  paragraph.classList.toggle('fault', Boolean(found.fault));
  if (found.fault) paragraph.textContent = found.fault;
  const single = found.pieces.filter((each) => each.tokens.length).length === 1;
  for (const piece of found.pieces) {
    paragraph.append(piece.before);
    if (!piece.tokens.length) paragraph.append(piece.text);
    piece.tokens.forEach((token, number) => {
      const end = number === piece.tokens.length - 1 && piece.complete, written = end ? '⏎' : token.text;
      if (!written) return;
      const button = document.createElement('button');
      button.className = end ? 'token end' : 'token';
      button.textContent = paragraph.querySelector('button') ? written : written.replace(/^ /, '');
      button.setAttribute('aria-label', `${end ? 'end' : token.name}, ${percent(token.logProb)}`);
      button.setAttribute('aria-pressed', 'false');
      button.style.setProperty('--share', (Math.min(1, -token.logProb / 4) * 0.85).toFixed(3));
      button.tabIndex = output.querySelector('button') ? -1 : 0;
      button.addEventListener('click', () => showStep(place, line, piece, number, button, single));
      paragraph.append(button);
    });
    paragraph.append(piece.after);
  }
}

function hideStep() {
  state.shown?.button.setAttribute('aria-pressed', 'false');
  state.shown = null;
  $('step').hidden = true;
}

function bar(name, logProb, current) {
  const item = document.createElement('li'), row = document.createElement(current === null ? 'div' : 'button');
  row.className = 'bar';
  row.innerHTML = '<span class="name"></span><span class="share" aria-hidden="true"></span><span class="number"></span>';
  const [label, share, number] = row.children;
  label.textContent = name;
  share.style.setProperty('--share', Math.exp(logProb).toFixed(4));
  number.textContent = percent(logProb);
  if (current) row.setAttribute('aria-current', 'true');
  item.append(row);
  $('bars').append(item);
  return row;
}

function showStep(place, line, piece, number, button, single) {
  hideStep();
  state.shown = { place, button };
  button.setAttribute('aria-pressed', 'true');
  const chosen = piece.tokens[number], before = piece.tokens.slice(0, number);
  const written = before.map((each) => each.text).join('').trim();
  $('place').textContent = written ? `After “${written}”` : 'The first token';
  $('bars').replaceChildren();
  const listed = chosen.likeliest.some((each) => each.token === chosen.token) ? chosen.likeliest : [...chosen.likeliest, chosen];
  for (const each of listed) {
    const row = bar(each.name, each.logProb, each.token === chosen.token);
    row.disabled = !single || each.token === state.about.eos[1];
    row.addEventListener('click', () => {
      state.forced.set(line, [...before.map(({ token }) => token), each.token]);
      update();
    });
  }
  const rest = 1 - listed.reduce((sum, each) => sum + Math.exp(each.logProb), 0);
  bar('all others', Math.log(Math.max(rest, 0)), null);
  $('step').hidden = false;
}

output.addEventListener('keydown', (event) => {
  const tokens = [...output.querySelectorAll('button')], place = tokens.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -place, End: tokens.length - 1 - place }[event.key];
  if (step === undefined || place < 0) return;
  event.preventDefault();
  const next = tokens[Math.max(0, Math.min(tokens.length - 1, place + step))];
  tokens[place].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});
addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || !state.shown) return;
  const { button } = state.shown;
  hideStep();
  button.focus();
});
text.addEventListener('input', () => {
  state.forced.clear();
  update();
});
$('beam').addEventListener('change', update);
$('direction').addEventListener('change', update);
