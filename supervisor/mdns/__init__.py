"""The name of the API in the local network (mDNS, Bonjour): the programs that use zeroconf."""
