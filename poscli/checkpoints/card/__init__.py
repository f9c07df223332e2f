"""The card of a checkpoint: what its config.json says of positions, what transformers makes of it, and its faults."""

from poscli.checkpoints.card.card import Card, Group, card_of, read_card, read_subject
from poscli.checkpoints.card.faults import Fault, Subject

__all__ = ["Card", "Fault", "Group", "Subject", "card_of", "read_card", "read_subject"]
