"""The rules of the hosted service, a module for each part of a build."""
