"""SIGHUP to a running watchdog: new settings, or the old ones where the file is bad; no event is lost over it."""

from __future__ import annotations

import signal

from tests.unit.recovery.test_commands import WAIT_S, Site, event, site, wait_for

__all__ = ["site"]


def test_a_changed_file_is_taken_and_a_bad_one_is_not(site: Site) -> None:
    process = site.start()
    wait_for(lambda: "watchdog of cluster one acts" in site.log())
    good = site.toml.read_text()
    site.toml.write_text(good.replace("poll_s = 0.5", "poll = 0.5"))
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: "the old ones stay in force" in site.log())
    assert "unknown key 'poll' in [watchdog] (did you mean 'poll_s'?)" in site.log()
    first = event(site, "7.1-1.ev")
    wait_for(lambda: not first.exists())
    site.toml.write_text(f'mode = "observe"\n{good}')
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: "watchdog of cluster one only observes" in site.log())
    second = event(site, "7.2-1.ev")
    wait_for(lambda: not second.exists())
    site.toml.write_text(good.replace(str(site.journal), f"{site.folder}/other.db"))
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: "watchdog.journal changed: put in force by a restart alone" in site.log())
    assert not (site.folder / "other.db").exists()
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    assert site.log().rstrip().endswith("stopped")


def test_many_at_once_end_in_one_that_runs(site: Site) -> None:
    process = site.start()
    wait_for(lambda: "watchdog of cluster one acts" in site.log())
    for _ in range(20):
        process.send_signal(signal.SIGHUP)
    path = event(site)
    wait_for(lambda: not path.exists())
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
