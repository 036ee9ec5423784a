"""HTTP API server: translates vendor request formats (dialects) to calls of the Engine protocol."""
