"""Files of torch.save's form that a stranger could send, by name: what they hold and what is said of them."""

import collections
import io
import os
import pickle
import stat
import struct
import zipfile

import numpy as np
import torch

DAMAGED = "is damaged"


def zipped(members, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members if isinstance(members, list) else members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def pickled(content, **members):
    return zipped({"a/data.pkl": content} | {f"a/{name}": each for name, each in members.items()})


def dumped(value, protocol=2):
    return pickled(pickle.dumps(value, protocol))


def saved(value, **options):
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value


def entry(value, name=b"head"):
    """The pickle of a dict with one value, of which these are the operations."""
    return b"\x80\x02}" + text(name) + value + b"s."


def encoded(content, encoding=b"latin1"):
    """Operations of bytes in protocol 2."""
    return b"c_codecs\nencode\n" + text(content) + text(encoding) + b"\x86R"


class Harm:
    def __reduce__(self):
        return os.system, ("touch harmed",)


class State:
    def __init__(self):
        self.x = 1


def array(shape, data, kind=b"i8", fortran=b"\x89"):
    """Operations of a NumPy array: shape, as operations; data, as operations."""
    dtype = (
        b"cnumpy\ndtype\n"
        + text(kind)
        + b"\x89\x88\x87R(K\x03"
        + text(b"<")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    return empty + b"(K\x01" + shape + dtype + fortran + data + b"tb"


def tensor(kind="LongStorage", key="0", offset=0, shape=(2, 3), strides=(3, 1), numbers=6, content=48):
    """A file with a tensor as torch writes it."""
    stream = io.BytesIO()
    pickler = pickle._Pickler(stream, 2)
    kind = getattr(torch, kind) if isinstance(kind, str) else kind
    pickler.persistent_id = lambda thing: ("storage", kind, key, "cpu", numbers) if thing == "numbers" else None
    rebuilt = collections.namedtuple("Rebuilt", "arguments")
    pickler.dispatch_table = {rebuilt: lambda each: (torch._utils._rebuild_tensor_v2, each.arguments)}
    pickler.dump({"head": rebuilt(("numbers", offset, shape, strides, False, collections.OrderedDict()))})
    return pickled(stream.getvalue(), **({"data/0": bytes(content)} if content is not None else {}))


def changed_at_end(content, place, value):
    """A .zip's central directory with bytes changed, counted from where it begins."""
    start = content.index(b"PK\1\2") + place
    return content[:start] + value + content[start + len(value) :]


def linked():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        info = zipfile.ZipInfo("a/data.pkl")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    return stream.getvalue()


def legacy(content, keys=("0",), numbers=(b"\3" + bytes(7) + bytes(24),), magic=0x1950A86A20F9469CFC6C, **about):
    machine = {"protocol_version": 1001, "little_endian": True} | about
    parts = [magic, 1001, machine]
    return b"".join([pickle.dumps(each, 2) for each in parts] + [content, pickle.dumps(list(keys), 2), *numbers])


STORED = saved({"head": torch.arange(3)}, _use_new_zipfile_serialization=False)
"""In the form from before torch 1.6."""
WORD = b"\x8a\x08" + struct.pack("<q", 1 << 47)
FAR = b"\x8a\x09" + bytes(8) + b"\1"
BYTES_24 = b"C\x18" + bytes(24)
DEEP = 300_000

UNREADABLE = {
    "tuples nested deeply": (pickled(b"\x80\x02" + b"(" * DEEP + b"t" * DEEP + b"."), "type tuple where dict"),
    "singles nested deeply": (pickled(b"\x80\x02)" + b"\x85" * DEEP + b"."), "it has a value of type tuple where dict"),
    "a deep key": (pickled(b"\x80\x02}" + b")" + b"\x85" * DEEP + b"Ns."), "crashed|damaged"),
    "a dict in itself": (pickled(b"\x80\x02}q\x00h\x00h\x00s."), DAMAGED),
    "code": (dumped({"head": Harm()}), "it names (posix|nt).system, which is not read here"),
    "code in protocol 0": (pickled(b"cposix\nsystem\n(S'touch harmed'\ntR."), "no pickle of protocol 2"),
    "code of an old instance": (pickled(b"\x80\x02(X\x01\x00\x00\x00aios\nsystem\n."), DAMAGED),
    "a name within a name": (pickled(b"\x80\x04\x8c\x05numpy\x8c\x0bf2py.os.sys\x93."), "it names numpy.f2py.os.sys"),
    "code in the form of before": (legacy(pickle.dumps({"head": Harm()}, 2)), "it names (posix|nt).system"),
    "eval": (pickled(entry(b"c__builtin__\neval\n" + text(b"1") + b"\x85R")), "it names __builtin__.eval"),
    "an object": (dumped(State()), "it names copyreg._reconstructor|it names .*State|it is damaged"),
    "a set": (dumped({1, 2}), "it names __builtin__.set, which is not read here"),
    "a list": (dumped([1]), "it has a value of type list where dict is expected"),
    "protocol 0": (pickled(b"\x80\x00}."), "no pickle of protocol 2"),
    "protocol 1": (pickled(pickle.dumps({"a": 1.5, "b": 1 << 90}, 1)), "no pickle of protocol 2"),
    "protocol 5": (dumped({}, 5), "no pickle of protocol 2"),
    "no pickle": (pickled(b"hello"), "no pickle of protocol 2"),
    "an empty pickle": (pickled(b""), "no pickle of protocol 2"),
    "numbers as keys": (dumped({1: 2}), "has no 'head'; it has 1"),
    "an empty stack": (pickled(b"\x80\x02R."), DAMAGED),
    "no mark": (pickled(b"\x80\x02Nu."), DAMAGED),
    "nothing to end with": (pickled(b"\x80\x02."), DAMAGED),
    "a memo far away": (pickled(b"\x80\x02}r\xff\xff\xff\xff."), "it takes more memory"),
    "not in the memo": (pickled(b"\x80\x02h\x07."), DAMAGED),
    "a text beyond the file": (pickled(b"\x80\x02X\xff\xff\xff\xffab."), "it is cut off"),
    "bytes beyond the file": (pickled(b"\x80\x04\x8e" + b"\xff" * 8 + b"."), "it is cut off"),
    "bytes beyond the pickle": (pickled(b"\x80\x02}B\x80\x00\x00\x00s.", **{"data/0": b"." * 400}), "it is cut off"),
    "an odd number of items": (pickled(b"\x80\x02}(" + text(b"a") + b"u."), DAMAGED),
    "an extension": (pickled(b"\x80\x02\x82\x01."), DAMAGED),
    "a class made anew": (pickled(b"\x80\x02cnumpy\ndtype\n)\x81."), "type Kind where dict"),
    "state of a class": (pickled(entry(b"cnumpy\ndtype\n}b")), DAMAGED),
    "state of a dict": (pickled(entry(b"}(K\x01K\x02tb")), DAMAGED),
    "state of a list": (pickled(entry(b"]}b")), DAMAGED),
    "a wrong state of a type": (pickled(entry(b"cnumpy\ndtype\n" + text(b"i8") + b"\x85RK\x01b")), "it is no array"),
    "an array without content": (
        pickled(entry(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R")),
        DAMAGED,
    ),
    "an odd persistent id": (pickled(entry(b"K\x07Q")), DAMAGED),
    "an odd key of numbers": (tensor(key=7), "its numbers are missing"),
    "an odd count of numbers": (tensor(numbers="6"), "not as many as it says"),
    "memory": (pickled(b"\x80\x02" + b"(" * 9_000_000 + b"."), "it takes more memory|crashed"),
    "memo bomb": (pickled(b"\x80\x02" + b"]\x94" * 4_000_000 + b"."), "it takes more memory|crashed"),
    "another encoding": (
        pickled(entry(encoded(b"a", b"bz2"))), "bytes of an unknown encoding",
    ),
    "another .zip": (zipped({"a/x": b"1"}), "it has no data.pkl, or two members of one name: no file of torch.save"),
    "data.pkl at the top": (zipped({"data.pkl": b""}), "it has no data.pkl"),
    "two pickles": (zipped({"a/data.pkl": b"", "b/data.pkl": b""}), "it has no data.pkl"),
    "big endian": (pickled(pickle.dumps({}), byteorder=b"big"), "of another byte order"),
    "a link": (linked(), "no pickle of protocol 2"),
    "paths upwards": (zipped({"../data.pkl": b"", "../../etc/passwd": b""}), "no pickle of protocol 2"),
    "a .zip bomb": (zipped({"a/data.pkl": bytes(50 << 20)}, zipfile.ZIP_DEFLATED), "no pickle of protocol 2"),
    "an encrypted member": (changed_at_end(pickled(b"\x80\x02}."), 8, b"\1"), DAMAGED),
    "a member beyond the file": (changed_at_end(pickled(b"\x80\x02}."), 42, b"\xf0\xff\xff\x0f"), DAMAGED),
    "a member longer than the file": (changed_at_end(pickled(b"\x80\x02}."), 20, b"\xff\xff\xff\x0f" * 2), DAMAGED),
    "a changed member": (pickled(b"\x80\x02}.").replace(b"\x80\x02}.", b"\x80\x02N.", 1), DAMAGED),
    "text": (b"head,relation\n", "no pickle of protocol 2"),
    "another number": (pickle.dumps(7, 2), "no pickle of protocol 2"),
    "another magic number": (legacy(pickle.dumps({}, 2), magic=7), "another version of torch"),
    "another machine": (legacy(pickle.dumps({}, 2), little_endian=False), "another version of torch, or on a machine"),
    "another version": (STORED.replace(struct.pack("<H", 1001), struct.pack("<H", 1002)), "another version of torch"),
    "keys that are not there": (legacy(pickle.dumps({}, 2)), DAMAGED),
    "more numbers than the file": (STORED[:-32] + b"\xff" * 7 + STORED[-25:], "it is cut off"),
    "nothing": (b"", "no pickle of protocol 2"),
}  # fmt: skip
"""Files of which nothing is read."""

WRONG = {
    "65 dimensions": (
        pickled(entry(array(b"(" + b"K\x01" * 65 + b"t", b"C\x08" + bytes(8)))), "it has 8 bytes for an array",
    ),
    "a shape beyond its bytes": (pickled(entry(array(WORD + b"\x85", BYTES_24))), "it has 24 bytes for an array"),
    "a shape beyond any file": (pickled(entry(array(FAR + b"\x85", BYTES_24))), "it has 24 bytes for an array"),
    "a shape of nothing and much": (pickled(entry(array(b"K\x00" + WORD + b"\x86", b"C\x00"))), "is an array"),
    "a negative shape": (pickled(entry(array(b"J\xff\xff\xff\xff\x85", BYTES_24))), "bytes for an array"),
    "a shape of texts": (pickled(entry(array(text(b"3") + b"\x85", BYTES_24))), "bytes for an array"),
    "a shape that is a number": (pickled(entry(array(b"K\x03", BYTES_24))), "it has 24 bytes for an array 3"),
    "fewer bytes": (pickled(entry(array(b"K\x04\x85", BYTES_24))), r"it has 24 bytes for an array \[4\] of <i8"),
    "more bytes": (pickled(entry(array(b"K\x02\x85", BYTES_24))), r"it has 24 bytes for an array \[2\] of <i8"),
    "floats": (dumped({"head": np.ones(3)}), "numbers of type 'f8'; integers are expected"),
    "objects": (dumped({"head": np.array([None, 1], object)}), "it is no array of numbers"),
    "times": (dumped({"head": np.array([1], "M8[s]")}), "numbers of type 'M8'; integers are expected"),
    "records": (dumped({"head": np.zeros(1, [("a", "i8")])}), "numbers of type 'V8'; integers are expected"),
    "floats of torch": (tensor(kind="DoubleStorage"), "numbers of type 'DoubleStorage'; integers are expected"),
    "a text": (dumped({"head": "abc"}), "it is no array"),
    "nothing": (dumped({"head": None}), "it is no array"),
    "characters beyond a byte": (
        pickled(entry(array(b"K\x01\x85", encoded("\u0100".encode() * 4)))),
        DAMAGED,
    ),
    "characters that are none": (
        pickled(entry(array(b"M\x00\x02\x85", encoded(b"\xff" * 4096)))),
        DAMAGED,
    ),
    "characters of two bytes": (
        pickled(entry(array(b"K\x03\x85", encoded("\u00e9".encode() * 12 + bytes(6))))),
        "it has 18 bytes for an array",
    ),
    "numbers that are not there": (tensor(content=None), "its numbers are missing"),
    "numbers of another key": (tensor(key="1"), "its numbers are missing"),
    "numbers cut off": (tensor(content=47), "its numbers are missing, or are not as many as it says"),
    "a count beyond the numbers": (tensor(numbers=1 << 50), "are not as many as it says"),
    "an offset beyond": (tensor(offset=1), "it has 48 bytes for an array"),
    "a negative offset": (tensor(offset=-1), "bytes for an array"),
    "rows beyond": (tensor(shape=(3, 3)), "it has 48 bytes for an array"),
    "strides beyond": (tensor(strides=(4, 1)), "it has 48 bytes for an array"),
    "a stride of nothing": (tensor(shape=(1 << 40, 3), strides=(0, 1)), "it has 48 bytes for an array"),
    "a negative stride": (tensor(strides=(-3, 1)), "bytes for an array"),
    "fewer strides": (tensor(strides=(1,)), "it has 48 bytes for an array"),
    "two names of one member": (zipped([("a/data.pkl", b""), ("a/data.pkl", b"")]), "two members of one name"),
}  # fmt: skip
"""Files with a dict whose array `head` is refused."""
