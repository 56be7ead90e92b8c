"""The state that outlives the supervisor: small files in LMX_HOME, and how they are written."""
