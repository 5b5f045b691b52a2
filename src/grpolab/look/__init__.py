"""The page of a study that answers to the hand: its numbers as one document, and the JavaScript that shows them."""
