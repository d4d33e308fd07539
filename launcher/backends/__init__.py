"""Backends: one package each, found by its folder's name.

A backend is a package ``launcher/backends/<name>`` whose ``__init__`` offers

- ``dtypes(spec) -> Dtypes``: what ``precision=`` means for it,
- ``check(spec) -> Iterator[ConfigError]``: what it cannot do, each with the way out,
- ``warnings(spec) -> Iterator[ConfigError]``: what runs but bites,
- ``engine(spec) -> EngineTraits``: the implementation that runs, as far as memory depends on it,
- ``overheads(rank) -> Iterable[MemoryTerm]``: buffers and temporaries that only it has,
- ``obstacles(spec) -> Iterator[ConfigError]``, if there are any: what this machine lacks to run a valid job,
- ``native(spec) -> Judgement``, if there is one: what the engine's own validator says of a run that ``check`` accepts,
- ``translate(spec, python) -> Job``: the job.
"""
