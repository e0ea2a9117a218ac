"""The backends of `import art`."""
