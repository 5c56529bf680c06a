"""Real servers on sockets, a client that can misbehave, and a stage on which test and app give each other signs."""

import pytest

pytest.register_assert_rewrite("tests.web.servers.laws", "tests.web.servers.site")
