"""dossier.html: a few sheets for a data-protection officer."""
