"""What a fitted run answers: embeddings, predictions, suggestions, exports."""
