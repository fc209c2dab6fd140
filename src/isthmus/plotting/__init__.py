"""Drawing: functions that draw on a given axis or figure and return nothing."""
