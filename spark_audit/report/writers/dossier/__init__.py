"""dossier.html, dossier.pdf: a few sheets for a data-protection officer."""
