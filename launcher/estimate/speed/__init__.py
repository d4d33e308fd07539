"""The model of speed: one public function per part of a step, put together by ``estimate``."""
