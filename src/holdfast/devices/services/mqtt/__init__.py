"""Devices behind an MQTT broker, over paho-mqtt."""
