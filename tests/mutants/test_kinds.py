"""What is planted, and what is not."""

import ast

import pytest

from tests.mutants.kinds import all_mutants, sampled

SOURCE = b'''"""1 + 1"""
class A:
    def f(self, x: int = 3, *, long: "1 + 1" = None) -> "2 + 2":
        """3 + 3"""
        if not x < max(x, 7):
            raise ValueError(f"{x + 1}")
        self.x += x[1:] * 2
        self.g(x)
        return x == 4 or self.g(x, long=True)

    def __repr__(self):
        return self.x + 1

@compiled
def k(x):
    def inner():
        return x - 1
    return x
'''


def test_each_kind_is_planted_and_no_text_is():
    mutants = all_mutants("a.py", SOURCE)
    assert {mutant.kind for mutant in mutants} == {
        "and/or", "argument dropped", "arithmetic", "comparison", "constant", "min/max", "negated", "return",
        "slice bound", "statement deleted",
    }  # fmt: skip
    assert {mutant.line for mutant in mutants} == {3, 5, 7, 8, 9, 17, 18}
    assert {mutant.function for mutant in mutants} == {"A.f", "k", "k.<locals>.inner"}
    assert all(mutant.kernel == mutant.function.startswith("k") for mutant in mutants)
    for mutant in mutants:
        changed = mutant.applied(SOURCE)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))


def test_a_seed_draws_the_same_mutants_again_and_every_line_before_one_twice():
    mutants = all_mutants("a.py", SOURCE)
    drawn = list(sampled(mutants, 1))
    assert drawn == list(sampled(mutants, 1)) != list(sampled(mutants, 2))
    assert sorted(map(repr, drawn)) == sorted(map(repr, mutants))
    lines = {mutant.line for mutant in mutants}
    assert {mutant.line for mutant in drawn[: len(lines)]} == lines


@pytest.mark.parametrize("maker", ["compiled = kept(nogil=True)", "@intrinsic\ndef load(context, address):\n    pass"])
def test_what_makes_kernels_is_part_of_them(maker):
    source = "def _pointer(builder, address):\n    return builder.cast(address, 64)\n\n\n" + maker
    mutants = all_mutants("a.py", source.encode())
    assert {mutant.function for mutant in mutants} >= {"_pointer"} and all(mutant.kernel for mutant in mutants)
    assert not any(mutant.kernel for mutant in all_mutants("a.py", source.partition("\n\n\n")[0].encode()))
