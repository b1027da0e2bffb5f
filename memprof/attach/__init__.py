"""Recording a process that runs already: its private socket, and the ways into it without one."""
