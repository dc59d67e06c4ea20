// SPDX-License-Identifier: Apache-2.0
// Reports what css-tree does not accept in style sheets, as FILE:LINE: MESSAGE: syntax, unknown properties and values, colours
// without a name. The files are one style sheet. Called by .ci/lint_page.py.
const fs = require('fs');
const tree = require('css-tree');

let found = 0;
const report = (file, line, message) => {
  ++found;
  console.log(`${file}:${line}: ${message}`);
};
const named = new Map();
const declarations = [];
for (const file of process.argv.slice(2)) {
  const sheet = tree.parse(fs.readFileSync(file, 'utf8'), {
    positions: true,
    onParseError: (error) => report(file, error.line, error.message),
  });
  tree.walk(sheet, (node) => {
    if (node.type !== 'Declaration') return;
    const value = node.value.type === 'Raw' ? node.value.value : tree.generate(node.value);
    declarations.push({file, line: node.loc.start.line, property: node.property, value: value.trim()});
    if (!node.property.startsWith('--')) return;
    if (!named.has(node.property)) named.set(node.property, {value: value.trim(), files: new Set()});
    named.get(node.property).files.add(file);
  });
}
for (const {file, line, property, value} of declarations) {
  // css-tree matches neither var() nor min(): a name stands for its value, and min() for a length.
  const unnamed = (value.match(/--[\w-]+(?=\))/g) ?? []).filter((name) => !named.has(name));
  for (const name of unnamed) report(file, line, `${name} has no value`);
  if (unnamed.length > 0) continue;
  const plain = value.replace(/var\((--[\w-]+)\)/g, (_, name) => named.get(name).value).replace(/\bmin\([^()]*\)/g, 'calc(1px)');
  const parsed = tree.parse(plain, {context: 'value'});
  const {error} = property.startsWith('--') ? tree.lexer.match('<color>', parsed) : tree.lexer.matchProperty(property, parsed);
  if (error) report(file, line, `${property}: ${value}: ${error.message.split('\n')[0]}`);
}
// Every colour has a value for light and one for dark.
for (const [name, {files}] of named) {
  if (files.size !== process.argv.length - 2) report([...files][0], 1, `${name} is missing in another file`);
}
process.exit(found > 0 ? 1 : 0);
