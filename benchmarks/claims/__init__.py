"""The paper's claims on given data: trained, audited and judged by rules set before."""
