"""Programs for those who develop and publish the project. Nothing here is shipped."""
