"""The drop-in contract of h2-ping-sidecar, as black-box tests of both console scripts."""
