// A document as block YAML with plain keys, for people to read. Only what our files hold: objects,
// arrays, strings, numbers and booleans; tests/dashboards/block_yaml.py reads it back. Keys are written
// as they are: none of ours needs quotes.

// Keys that say what a thing is come first; the rest follows by the alphabet.
local first = ['apiVersion', 'kind', 'metadata', 'name', 'record', 'alert', 'interval', 'expr', 'for', 'labels', 'annotations', 'summary', 'description'];
local fields(object) =
  [key for key in first if std.objectHas(object, key)] +
  [key for key in std.objectFields(object) if !std.member(first, key)];

local nested(value) = std.isObject(value) || std.isArray(value);

local scalar(value, indent) =
  if !std.isString(value) then std.toString(value)
  else
    local lines = std.split(value, '\n');
    if std.length(lines) == 1 then std.escapeStringJson(value)
    // No line of ours begins with a space or ends with one, so the indicator needs no number.
    else '|-\n' + std.join('\n', [indent + line for line in lines if line != '']);

// `head` stands before the first line, `indent` before the others: an item of an array begins on the
// line of its dash.
local block(value, indent, head=indent) =
  if std.isObject(value) then
    local keys = fields(value);
    std.join('\n', [
      (if i == 0 then head else indent) + keys[i] + ':' +
      (
        if nested(value[keys[i]]) then '\n' + block(value[keys[i]], indent + '  ')
        else ' ' + scalar(value[keys[i]], indent + '  ')
      )
      for i in std.range(0, std.length(keys) - 1)
    ])
  else
    std.join('\n', [
      if nested(item) then block(item, indent + '  ', indent + '- ')
      else indent + '- ' + scalar(item, indent + '  ')
      for item in value
    ]);

{ document(value):: block(value, '') + '\n' }
