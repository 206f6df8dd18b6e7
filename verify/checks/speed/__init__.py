"""Speed: products, memory, copies and training steps against the card's figures and its twins."""
