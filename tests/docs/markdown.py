"""Reads as much of Markdown as our pages use: headings, links, inline code and blocks of code."""

import dataclasses
import html
import re

_FENCE = re.compile(r'( *)(```+|~~~+) *([A-Za-z0-9+#-]*)[^`]*$')
_LIST_ITEM = re.compile(r'( *)([-*+]|\d+[.)]) +')
_HEADING = re.compile(r'(#{1,6}) +(.*?) *#*$')
_INLINE_CODE = re.compile(r'(?<!`)(`+)(?!`)((?:(?!\n *\n).)+?)(?<!`)\1(?!`)', re.DOTALL)
_LINK = re.compile(r'(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(\s*<?([^\s()<>]+)>?(?:\s+"[^"]*")?\s*\)')
_REFERENCE = re.compile(r'^ {0,3}\[[^\]^]+\]: *<?(\S+?)>?(?: |$)', re.MULTILINE)
_HTML_TARGET = re.compile(r'<(?:img|a)\b[^>]*?\b(?:src|href)="([^"]*)"', re.IGNORECASE)
_BARE_URL = re.compile(r'\bhttps?://[^\s<>"\'`|)\]]+')
_QUOTED_FROM = re.compile(r'<!-- from (\S+) -->\s*$')


@dataclasses.dataclass
class Block:
    """A block of code. `line` is that of its first line of code."""
    line: int
    language: str  # of a fence; empty where none is said, and of an indented block
    fenced: bool
    lines: list
    quoted_from: str = ''  # the file that a comment before the block names

    @property
    def text(self):
        return '\n'.join(self.lines)


@dataclasses.dataclass
class Inline:
    line: int
    text: str


class Page:

    def __init__(self, text):
        self.text = text
        self.blocks = []
        self.headings = []  # (line, text)
        prose = self._read(text.split('\n'))
        self.prose = '\n'.join(prose)  # blocks are blank in it, so that lines keep their numbers
        self.inline = [Inline(self._line_at(m.start()), ' '.join(m[2].split()))
                       for m in _INLINE_CODE.finditer(self.prose)]
        without_code = _INLINE_CODE.sub(lambda m: re.sub(r'[^\n]', ' ', m[0]), self.prose)
        without_comments = re.sub(r'<!--.*?-->', lambda m: re.sub(r'[^\n]', ' ', m[0]), without_code,
                                  flags=re.DOTALL)
        self.links = [(self._line_at(m.start()), m[3]) for m in _LINK.finditer(without_comments)]
        for pattern in (_REFERENCE, _HTML_TARGET):
            self.links += [(self._line_at(m.start()), m[1])
                           for m in pattern.finditer(without_comments)]
        self.urls = [(self._line_at(m.start(), text), m[0].rstrip('.,;:'))
                     for m in _BARE_URL.finditer(text)]
        self.anchors = self._anchors()

    def _line_at(self, offset, text=None):
        return (self.prose if text is None else text).count('\n', 0, offset) + 1

    def _read(self, lines):
        prose = []
        item = 0          # column at which the text of the list item begins that we are in
        after_blank = True
        quoted_from = ''
        at = 0
        while at < len(lines):
            line = lines[at]
            fence = _FENCE.match(line)
            if fence:
                block = Block(at + 2, fence[3].lower(), True, [], quoted_from)
                prose.append('')
                at += 1
                while at < len(lines) and not re.match(r' *' + re.escape(fence[2][:3]) + '+ *$', lines[at]):
                    own = lines[at]
                    lead = len(own) - len(own.lstrip(' '))
                    block.lines.append(own[min(lead, len(fence[1])):])
                    prose.append('')
                    at += 1
                prose.append('')
                self.blocks.append(block)
                at += 1
                after_blank = False
                quoted_from = ''
                continue
            indentation = len(line) - len(line.lstrip(' '))
            if line.strip() and after_blank and indentation >= item + 4:
                block = Block(at + 1, '', False, [])
                while at < len(lines) and (not lines[at].strip() or
                                           lines[at].startswith(' ' * (item + 4))):
                    block.lines.append(lines[at][item + 4:])
                    prose.append('')
                    at += 1
                while not block.lines[-1].strip():
                    block.lines.pop()
                self.blocks.append(block)
                continue
            heading = _HEADING.match(line)
            if heading:
                self.headings.append((at + 1, heading[2]))
            list_item = _LIST_ITEM.match(line)
            if list_item:
                item = list_item.end()
            elif line.strip() and (heading or (after_blank and indentation < item)):
                item = 0
            if line.strip():
                marker = _QUOTED_FROM.match(line)
                quoted_from = marker[1] if marker else ''
            after_blank = not line.strip()
            prose.append(line)
            at += 1
        return prose

    def _anchors(self):
        """As GitHub makes them."""
        anchors = set(re.findall(r'<a\s+(?:id|name)="([^"]+)"', self.text))
        seen = {}
        for _, heading in self.headings:
            slug = slug_of(heading)
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            anchors.add(f'{slug}-{count}' if count else slug)
        return anchors


def slug_of(heading):
    text = re.sub(r'!?\[([^\]]*)\]\([^)]*\)', r'\1', heading)
    # Underscores that emphasize are rare and none of ours: those within words stay.
    text = html.unescape(text.replace('`', '').replace('*', '')).strip().lower()
    return re.sub(r'[^\w\- ]', '', text).replace(' ', '-')
