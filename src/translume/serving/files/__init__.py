"""Document translation over HTTP: uploads, background jobs, downloads."""
