#!/usr/bin/env python3
"""Makes the text of the model of 100 million parameters: the documentation of Debian's packages, as plain English text.

    mkdir /tmp/debs && (cd /tmp/debs && apt-get download $(cut -d " " -f 1 $OLDPWD/tools/hundred/packages.txt))
    python3 tools/hundred/make_text.py /tmp/debs /tmp/text

writes to the second folder, one document a line, {"text": TEXT}:

    train.jsonl          what the model is trained on
    calibration.jsonl    pieces of it, for the quantizer
    heldout.jsonl        pieces of other files, one or two of each package: to judge by
    packages.txt         packages, versions, files and characters of each that are in it; the one in this folder is of Debian 12

Of a package's files (HTML, plain text, man pages, info, POD, dictionaries) as many are taken, in the order of a hash of their names, as make
--per-package megabytes of plain text. Left out are what does not look like English prose, by the share of its commonest words, and
paragraphs that stood in a file before. One file in fifty is held out. Needs dpkg, nothing else.
"""
import argparse
import gzip
import hashlib
import html
import json
import re
import subprocess
import tempfile
from pathlib import Path

COMMON = frozenset("the of to and a in is for be that with this are or as it on by an from can if not".split())
LEAST_COMMON = 0.2  # their share of all words; code has less, and so has any other language
LEAST = 600  # characters of a document
PIECE = 1000  # characters of a text to judge by, or for calibration
CALIBRATION, HELDOUT = 128, 100  # pieces
OTHER_LANGUAGES = re.compile(r"[./_](ar|bg|ca|cs|da|de|el|es|fi|fr|gl|hr|hu|id|it|ja|ko|lt|lv|nb|nl|pl|pt|pt[-_]BR|ro|ru|sk|sl|sr|sv|ta|tr|uk|"
                             r"vi|zh|zh[-_](CN|TW))([./]|$)", re.IGNORECASE)
NO_TEXT = re.compile(r"/(_sources|_static|search|genindex|changelog)|copyright$|LICENSE", re.IGNORECASE)

HIDDEN = re.compile(r"<(script|style|head|nav|header|footer|select)\b.*?</\1\s*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
BLOCK = re.compile(r"</?(p|div|h\d|li|dt|dd|tr|table|ul|ol|dl|section|pre|blockquote|title|note|item|para)\b[^>]*>", re.IGNORECASE)
BREAK = re.compile(r"<br\b[^>]*>", re.IGNORECASE)
TAG = re.compile(r"<[^>]*>")
PREFORMATTED = re.compile(r"(<pre\b.*?</pre\s*>)", re.DOTALL | re.IGNORECASE)


def of_html(text):
    parts = PREFORMATTED.split(HIDDEN.sub(" ", text))
    # Outside <pre> a line's end is a blank.
    parts = [part if part[:4].lower() == "<pre" else re.sub(r"\s+", " ", part) for part in parts]
    text = BREAK.sub("\n", BLOCK.sub("\n\n", "".join(parts)))
    return html.unescape(TAG.sub("", text)).replace("¶", "")


def of_roff(text):
    """A man page: macros go, the text of headings stays, marks of fonts go."""
    lines = []
    for line in text.splitlines():
        if line.startswith(("'", '.\\"')):
            continue
        heading = re.match(r"\.\s*(SH|SS|Sh|Ss)\s+(.*)", line)
        if heading:
            lines += ["", heading[2].strip('"'), ""]
        elif re.match(r"\.\s*(PP|P|LP|TP|IP|Pp|It|sp)\b", line):
            lines.append("")
        elif re.match(r"\.\s*[A-Z][A-Za-z]?\s", line):
            lines.append(line.split(maxsplit=1)[1].replace('"', ""))
        elif not line.startswith("."):
            lines.append(line)
    text = re.sub(r"\\f(\[\w*\]|\(\w\w|\w)|\\[&|^/,%]|\\s[-+]?\d", "", "\n".join(lines))
    return re.sub(r"\\\((\w\w|..)", lambda mark: {"em": "--", "aq": "'", "lq": '"', "rq": '"', "bu": "*"}.get(mark[1], ""),
                  text).replace("\\-", "-").replace("\\e", "\\").replace("\\ ", " ")


def of_info(text):
    return re.sub(r"\x1f\nFile: [^\n]*\n|\x1f\n(Indirect|Tag Table):.*", "\n", text, flags=re.DOTALL if "Tag Table" in text else 0)


def plain(path):
    """The text of a file, or None where it is of no kind that is known."""
    name = path.name.removesuffix(".gz").removesuffix(".dz").removesuffix(".en")
    if re.search(r"\.(html?|xhtml|page)$", name):
        reader = of_html
    elif re.search(r"\.info(-\d+)?$", name):
        reader = of_info
    elif re.search(r"/man/man\d\w*/", str(path)):
        reader = of_roff
    elif re.search(r"\.(txt|text|pod|rst|md|dict|TXT)$", name) or name in ("README", "FAQ", "NEWS"):
        reader = str
    else:
        return None
    data = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        data = gzip.decompress(data)
    return reader(data.decode("utf-8", errors="replace"))


def tidy(text):
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ufffd]", "", text.replace("\r", "").replace("\xa0", " "))
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"(.)\1{7,}", lambda run: run[0][:4] if not run[0].isspace() else run[0], re.sub(r"\n{3,}", "\n\n", text)).strip()


def is_english(text):
    words = re.findall(r"[a-z]+", text.lower())
    return len(words) > 50 and sum(word in COMMON for word in words) >= LEAST_COMMON * len(words)


def order(name):
    return hashlib.sha1(name.encode()).hexdigest()


def documents(folder, most):
    """(name, text) of a package's unpacked folder, until their texts are so many characters."""
    seen, total = set(), 0
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    for path in sorted(files, key=lambda path: order(str(path.relative_to(folder)))):
        name = str(path.relative_to(folder))
        if NO_TEXT.search(name) or OTHER_LANGUAGES.search(name) or ("/help/" in name and "/help/C/" not in name):
            continue
        text = plain(path)
        if text is None:
            continue
        paragraphs = []
        for paragraph in tidy(text[:400_000 if not name.endswith(".dz") else 2 * most]).split("\n\n"):
            key = hash(paragraph.strip())
            if paragraph.strip() and key not in seen:
                seen.add(key)
                paragraphs.append(paragraph)
        text = "\n\n".join(paragraphs)
        if len(text) >= LEAST and is_english(text):
            yield name, text
            total += len(text)
            if total >= most:
                return


def piece(text, name):
    """PIECE characters from some paragraph on, or None."""
    starts = [0] + [found.end() for found in re.finditer(r"\n\n", text)]
    starts = [start for start in starts if start + PIECE <= len(text)]
    if not starts:
        return None
    start = starts[int(order("piece " + name), 16) % len(starts)]
    cut = text[start:start + PIECE]
    return cut[:cut.rfind(" ")] if " " in cut else None


def write(path, texts):
    with path.open("w") as file:
        for text in texts:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("debs", type=Path, help="a folder of .deb files")
    parser.add_argument("out", type=Path)
    parser.add_argument("--per-package", type=float, default=0.9, metavar="MB", help="of plain text at most, about")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train, calibration, heldout, manifest = [], [], [], []
    for deb in sorted(args.debs.glob("*.deb")):
        package, version, _ = deb.name.split("_")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["dpkg", "-x", deb, folder], check=True)
            found = list(documents(Path(folder), int(args.per_package * 1e6)))
        apart = [(name, text) for name, text in found if int(order("held out " + package + name), 16) % 50 == 0]
        rest = [(package + name, text) for name, text in found if (name, text) not in apart]
        train += rest
        pieces = [one for one in (piece(text, name) for name, text in apart) if one is not None and is_english(one)]
        heldout += list(enumerate(pieces))
        manifest.append(f"{package} {version.replace('%3a', ':')} {len(found)} {sum(len(text) for _, text in found)}")
        print(manifest[-1], flush=True)
    train.sort(key=lambda document: order(document[0]))
    for name, text in train:
        one = piece(text, name)
        if one is not None and is_english(one) and len(calibration) < CALIBRATION:
            calibration.append(one)
    # The first of each package, then the second, ...
    heldout = [text for _, text in sorted(heldout, key=lambda one: one[0])][:HELDOUT]
    write(args.out / "train.jsonl", (text for _, text in train))
    write(args.out / "calibration.jsonl", calibration)
    write(args.out / "heldout.jsonl", heldout)
    (args.out / "packages.txt").write_text("\n".join(manifest) + "\n")
    print(f"{len(train)} documents, {sum(len(text) for _, text in train) / 1e6:.1f} M characters; {len(calibration)} pieces for calibration, "
          f"{len(heldout)} held out")


if __name__ == "__main__":
    main()
