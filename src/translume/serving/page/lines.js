// Texts as lines, and the characters of a translation that each token covers.

export const END = "</s>";

// The non-blank lines of a text, and the white space before each of them and after the last.
export function parted(text) {
  const lines = [], gaps = [];
  let gap = "";
  for (const part of text.split(/([\r\n]+)/)) {
    const line = part.trim();
    if (!line) {
      gap += part;
      continue;
    }
    const begin = part.indexOf(line);
    lines.push(line);
    gaps.push(gap + part.slice(0, begin));
    gap = part.slice(begin + line.length);
  }
  return { lines, gaps: [...gaps, gap] };
}

// The text of a token: ▁ is a space, ▁▁ a ▁ of the text itself.
const spelt = (token) => token.replace(/▁▁|▁/g, (mark) => (mark.length === 2 ? "▁" : " "));

// For each token the [begin, end) of its characters in the text, without the space before a word; empty if it has
// none, such as EOS. If several tokens spell one character (bytes), the first token gets it.
export function placed(tokens, text) {
  const places = [];
  let at = 0, skipped = [];
  const placeSkipped = (end) => {
    if (!skipped.length) return;
    const begin = text.slice(at, end).search(/\S/);
    if (begin >= 0) places[skipped[0]] = [at + begin, at + text.slice(at, end).trimEnd().length];
    at = Math.max(at, end);
    skipped = [];
  };
  tokens.forEach((token, index) => {
    places.push([at, at]);
    if (token === END) return;
    const bare = spelt(token).trim();
    if (!bare) return;
    const begin = text.indexOf(bare, at);
    const near = begin >= 0 && (skipped.length ? begin - at <= 4 * skipped.length + 8 : !text.slice(at, begin).trim());
    if (!near) {
      skipped.push(index);
      return;
    }
    placeSkipped(begin);
    at = begin + bare.length;
    places[index] = [begin, at];
  });
  placeSkipped(text.length);
  return places;
}

// Split tokens into parts, each of which ends with its end token: as [first, last) indices.
export function parts(tokens) {
  const found = [];
  let first = 0;
  tokens.forEach((token, index) => {
    if (token !== END && index !== tokens.length - 1) return;
    found.push([first, index + 1]);
    first = index + 1;
  });
  return found;
}
