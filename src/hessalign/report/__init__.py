"""What people look at: progress, tables and figures, with the published numbers beside ours."""
