"""What happens to a request of this process before it is queued: images, sub-requests and the tokenizer thread."""
