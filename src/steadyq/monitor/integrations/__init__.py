"""The stability monitor inside other libraries; each module imports its library, so import the one you need."""
