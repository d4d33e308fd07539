"""The result of a check as an object: as text, as the document of ``check --json``, and for notebooks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.estimate.memory.result import Peak
from launcher.estimate.memory.terms import Pile
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight import explain
from launcher.preflight.assess import Assessment, as_json, invalid_as_json
from launcher.preflight.explain import Explanation
from launcher.preflight.fixes import Fix
from launcher.preflight.verdict import VerdictName
from launcher.rules.model import not_named
from launcher.spec import RunSpec
from launcher.views.check import html as check_html
from launcher.views.check.text import as_text, errors_as_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The pre-flight's answer about one run; ``print`` shows what ``launch check`` prints.

    Attributes:
        assessment: The judged run; None where the words make no run that could be judged.
        errors: All errors; the verdict is ``invalid`` where there are any.
        warnings: Pitfalls.
    """

    assessment: Assessment | None
    errors: tuple[ConfigError, ...]
    warnings: tuple[ConfigError, ...]

    @classmethod
    def of(cls, assessment: Assessment, *, warnings: tuple[ConfigError, ...] = ()) -> Check:
        """The answer about a judged run; ``warnings`` stand before its own."""
        judged = replace(assessment, warnings=(*warnings, *assessment.warnings))
        return cls(assessment=judged, errors=judged.errors, warnings=judged.warnings)

    @property
    def verdict(self) -> VerdictName:
        """The answer in one word: ``fits``, ``tight``, ``does_not_fit``, ``invalid`` or ``unknown``."""
        return "invalid" if self.assessment is None else self.assessment.verdict.name

    @property
    def fits(self) -> bool | None:
        """True if it fits, also within the estimate's error band; None where it is not known what the run builds."""
        return False if self.assessment is None else self.assessment.verdict.fits

    @property
    def spec(self) -> RunSpec | None:
        """The run's settings; None where the words make none."""
        return None if self.assessment is None else self.assessment.spec

    @property
    def peak(self) -> Peak | None:
        """The peak of the worst rank in bytes; None for an invalid run, and where the verdict is ``unknown``."""
        estimate = None if self.assessment is None else self.assessment.estimate
        return None if estimate is None else estimate.peak

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """Changes with which it would fit, the cheapest first; each holds its ``overrides``."""
        return () if self.assessment is None else self.assessment.fixes

    @property
    def speed(self) -> SpeedEstimate | None:
        """The predicted speed, of a run that does not fit as if it did; None where it is unknown."""
        return None if self.assessment is None else self.assessment.speed

    def explain(self, pile: Pile) -> Explanation:
        """The terms of one pile: what ``launch check --explain PILE`` prints.

        Raises:
            ConfigErrors: Nothing was estimated: the run is not valid, or it is not known what it builds.
        """
        return explain.explained(self._estimated().spec, pile)

    def speed_table(self, width: int = 80) -> str:
        """The text of ``launch check --speed``: the parts of a step, with formulas, numbers and sources.

        Raises:
            ConfigErrors: Nothing was estimated: the run is not valid, or it is not known what it builds.
        """
        from launcher.views.check import speed_table  # Late, because few checks ask for it.

        return speed_table.as_text(self._estimated(), width)

    def _estimated(self) -> Assessment:
        if self.assessment is None or self.assessment.estimate is None:
            raise ConfigErrors(self.errors or [not_named()])
        return self.assessment

    def as_dict(self) -> dict[str, Any]:
        """The document of ``launch check --json`` (docs/contract.md)."""
        return invalid_as_json(self.errors, self.warnings) if self.assessment is None else as_json(self.assessment)

    def as_text(self, width: int = 80) -> str:
        """The text of ``launch check`` on a terminal of ``width`` columns."""
        return errors_as_text(self.errors, width) if self.assessment is None else as_text(self.assessment, width)

    def __str__(self) -> str:
        return self.as_text()

    def _repr_html_(self) -> str:
        """The answer as a notebook shows it."""
        return check_html.as_html(self.verdict, self.assessment, self.errors, self.warnings)
