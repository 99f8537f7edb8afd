"""Files and objects, here and at URLs: written whole, tried again, claimed by one writer, never over others'."""
