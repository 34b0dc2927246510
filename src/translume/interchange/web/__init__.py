"""Export as a page that translates in a browser, by the kernels in WebAssembly."""
