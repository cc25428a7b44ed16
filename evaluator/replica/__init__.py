"""Names of a model, hardware and calibration -> one replica: its iteration cost, KV cache and limits; or why not."""
