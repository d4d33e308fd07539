"""Backends: one package each, found by its folder's name.

A backend is a package ``launcher/backends/<name>`` whose ``__init__`` offers

- ``dtypes(spec) -> Dtypes``: its meaning of ``precision=``, format by format,
- ``check(spec) -> Iterator[ConfigError]``: its limits that the run breaks, each with the way out,
- ``warnings(spec) -> Iterator[ConfigError]``: pitfalls of a run that is valid,
- ``engine(spec) -> EngineTraits``: the implementation that runs, as far as memory depends on it,
- ``overheads(rank) -> Iterable[MemoryTerm]``: buffers and temporaries that only it has,
- ``obstacles(spec) -> Iterator[ConfigError]``, if there are any: lacks of this machine for a valid job,
- ``native(spec) -> Judgement``, if there is one: the engine's own validator's answer to a run that ``check`` accepts,
- ``translate(spec, python) -> Job``: the job.
"""
