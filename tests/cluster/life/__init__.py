"""The agent over time: killed, upgraded, rebooted, uninstalled; kubelet and API server away; unusual nodes."""
