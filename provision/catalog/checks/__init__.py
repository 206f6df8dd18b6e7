"""What must hold between the rows, a module a subject; `provision.catalog.check` calls them all."""
