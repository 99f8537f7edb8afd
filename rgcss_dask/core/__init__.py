"""The mathematics: functions of arrays, without files and without Dask."""
