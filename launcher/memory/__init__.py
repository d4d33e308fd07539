"""The memory estimate: one public function per tensor class, put together by ``estimate``."""
