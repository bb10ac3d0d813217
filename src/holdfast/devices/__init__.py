"""Commands to devices: added with the business's own transactions, sent one at a time a device, none lost."""
