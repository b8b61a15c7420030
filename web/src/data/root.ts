/** The site of the whole model. */
export const ROOT = "[root module]";
