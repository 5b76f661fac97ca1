//! Messages of a Bytefrog agent -> batches of definitions and calls.
