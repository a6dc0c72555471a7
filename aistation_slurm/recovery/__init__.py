"""What the controller does about faults: events, attribution, policy, journal, actions, the watchdog loop."""
