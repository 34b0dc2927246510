"""Export to ONNX, for ONNX Runtime, Optimum and transformers.js."""
