// Prints what an exported page computes: the ids of texts, and the log-probabilities of the tokens of targets.
import fs from 'node:fs';

const { folder, texts, pairs } = JSON.parse(fs.readFileSync(0));
const [{ Tokenizer }, { Translator }] = await Promise.all(
  ['tokenizers.js', 'translume.js'].map((name) => import(`${folder}/${name}`)));
const read = async (name) => new Response(fs.readFileSync(new URL(`${folder}/${name}`)));
const page = await Translator.load(Tokenizer, read);
const logProbs = pairs.map(([source, target]) => {
  page.engine.search(source, target.slice(0, 1), { limit: 1 });
  return page.engine.inspect(target.slice(0, 1), target.slice(1), 0).map((each) => each.logProb);
});
console.log(JSON.stringify([texts.map((text) => page.encode(text)), logProbs]));
