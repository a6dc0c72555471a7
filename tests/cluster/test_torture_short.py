"""A short torture (see torture/): ten rounds of random faults; nothing is lost, doubled or touched."""

from __future__ import annotations

import pytest

from tests.cluster.torture.campaign import Campaign
from tests.cluster.torture.site import Site

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROUNDS, SEED = 10, 1


@pytest.mark.timeout(600)
def test_ten_rounds() -> None:
    with Site() as site:
        campaign = Campaign(site, ROUNDS, SEED, say=print, patient=False)
        campaign.run()
        assert not campaign.found, "\n\n".join(found.story for found in campaign.found)
        assert len(campaign.history.jobs) >= 4, "too few jobs ran for this to show anything"
        assert any(job.row.get("restart_cnt") for job in campaign.history.jobs.values()), "no fault hit a job"
