"""The whole way in miniature: data, a base, five runs, a manifest, every audit."""
