from __future__ import annotations

import json
from typing import Any

from launcher.charts.parallel import Axis, number_of, parallel


def drawn(*axes: Axis, coloured: int = 0) -> dict[str, Any]:
    names = [str(place) for place in range(len(axes[0].values))]
    spec = parallel("rows", names, axes, coloured=coloured, best=names[0])
    assert json.loads(json.dumps(spec)) == spec
    return spec


def scale(spec: dict[str, Any], place: int) -> dict[str, Any]:
    return next(each for each in spec["scales"] if each["name"] == f"s{place}")


def test_few_values_stand_evenly_in_the_order_of_their_numbers_as_they_were_typed() -> None:
    spec = drawn(
        Axis(title="lr", values=["1e-3", "1e-5", "3e-4", "1e-3"]), Axis(title="zero", values=["3", "1", "x", None])
    )
    assert (scale(spec, 0)["type"], scale(spec, 0)["domain"]) == ("point", ["1e-5", "3e-4", "1e-3"])
    assert scale(spec, 1)["domain"] == ["1", "3", "x"], "words come after numbers"


def test_many_numbers_are_on_a_scale_which_is_logarithmic_over_two_decades() -> None:
    seeds = Axis(title="seed", values=[str(number) for number in range(9)])
    rates = Axis(title="lr", values=[f"{number}e-5" for number in (1, 2, 3, 5, 9, 20, 50, 90, 200)])
    spec = drawn(seeds, rates)
    assert (scale(spec, 0)["type"], scale(spec, 0)["domain"]) == ("linear", [0, 8])
    assert (scale(spec, 1)["type"], scale(spec, 1)["domain"]) == ("log", [1e-5, 2e-3])


def test_results_are_on_a_scale_however_few_there_are_and_one_value_has_room_around_it() -> None:
    spec = drawn(Axis(title="a", values=["1", "2"]), Axis(title="loss", values=[2.0, None], result=True), coloured=1)
    low, high = scale(spec, 1)["domain"]
    assert low < 2.0 < high
    assert [point["k1"] for point in spec["data"][0]["values"]] == [2.0, None]


def test_a_word_is_a_number_only_if_it_is_typed_as_one() -> None:
    assert [number_of(value) for value in ("1e-3", "auto", None, 3.0)] == [1e-3, None, None, 3.0]


def test_titles_of_others_stand_in_expressions_as_texts() -> None:
    title = "a'\"]};alert(1)//"
    spec = drawn(Axis(title=title, values=["1", "2"]), Axis(title="b", values=["1", "3"]))
    assert json.dumps(title) in spec["marks"][0]["encode"]["enter"]["tooltip"]["signal"]
