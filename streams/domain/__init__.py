"""Pure decisions and values: functions of (state, event, now). No I/O, no clock, no asyncio."""
